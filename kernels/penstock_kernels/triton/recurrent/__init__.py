"""Recurrent layers on states in the device's memory."""
