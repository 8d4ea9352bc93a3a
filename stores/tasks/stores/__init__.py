"""The stores of one task: opening, restore, changelog records, offset import, upgrades, views for readers."""
