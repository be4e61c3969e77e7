"""The datasets that ship with the core; `config.py` holds their settings."""
