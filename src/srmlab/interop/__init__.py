"""Doors to other people's tools. Each file needs the package it speaks to, and nothing else imports it."""
