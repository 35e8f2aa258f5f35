# OpenMP where the compiler can link it; `make OPENMP=` does without.
OPENMP := $(shell t=$$(mktemp) && echo 'int main(void) { return 0; }' \
	| $(CC) -fopenmp -x c -o "$$t" - 2>/dev/null && echo -fopenmp; rm -f "$$t")
