"""The names of other programs for this library: `pi` for pi and oh-my-pi, `dash` for Dash."""
