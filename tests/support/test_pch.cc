// Carries the precompiled header that every torch test reuses.
