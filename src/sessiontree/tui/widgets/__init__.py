"""Widgets that screens are composed of."""
