"""Tests of what operators see: metrics, health, traces."""
