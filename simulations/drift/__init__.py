"""What a drift costs a fleet, and how much of it federated rounds bring back."""
