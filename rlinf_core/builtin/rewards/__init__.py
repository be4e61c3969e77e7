"""The rewards that ship with the core; each file is one reward, `config.py` holds their settings."""
