"""What several suites measure against: references, tolerances, real tensors, a real server."""
