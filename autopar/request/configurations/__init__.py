"""Configurations of other tools: one record, and a reader and a writer for each tool."""
