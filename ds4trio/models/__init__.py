"""Model families in torch."""
