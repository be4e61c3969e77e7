"""From what a flow needs and what was measured to where and how it runs."""
