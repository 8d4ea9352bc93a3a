"""The files of a store besides its engine's: lock, identity, mark of an open store; creation, removal, migration."""
