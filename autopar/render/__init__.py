"""Renders plans as tables, pages and charts, for a terminal or a browser."""
