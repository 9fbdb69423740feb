"""PTX text taken apart, and changes of it put together."""
