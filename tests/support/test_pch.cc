// Carries the precompiled header that every torch test reuses.
int main() { return 0; }
