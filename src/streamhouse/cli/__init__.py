"""The command line: commands, tables, progress, exit codes. Translates for people; decides nothing."""
