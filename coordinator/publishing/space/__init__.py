"""The demo of a released model, whose files are copied to the hub; manyhands does not import it."""
