"""One adapter for each storage library, all behind the interface in ``engine``, and what several of them share."""
