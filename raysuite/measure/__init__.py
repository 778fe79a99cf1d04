"""What is measured, and where: device-synchronised time, memory, environment."""
