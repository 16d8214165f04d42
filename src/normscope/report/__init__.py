"""Plain documents and what renders them; this room knows no model."""
