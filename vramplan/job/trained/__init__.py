"""What a job trains: frozen parts, adapters, quantized weights, a few blocks at a time."""
