-- Offset metadata may hold a NUL, which text cannot: such a text is stored in base64 behind a mark, U+0001 (groups.py).
-- A text that happens to begin with the mark is stored so as well; here are those from before.
UPDATE group_offsets
SET metadata = E'\x01' || translate(encode(convert_to(metadata, 'UTF8'), 'base64'), E'\n', '')
WHERE starts_with(metadata, E'\x01');
