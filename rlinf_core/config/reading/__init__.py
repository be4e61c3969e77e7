"""From YAML values to typed settings: layers, shorthands, conversion and ranges."""
