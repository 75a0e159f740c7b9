"""Phase II: candidates, selection and the record of each decision. Knows no method."""
