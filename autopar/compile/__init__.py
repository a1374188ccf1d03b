"""A model on its way to plans and programs: with stages or without, batch after batch."""
