"""Work that outlives a request: agent runs, swarms, experiments and exports."""
