"""The optimised certificate: reachable ellipsoids."""
