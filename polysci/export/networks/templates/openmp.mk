# The first of these that the compiler can link: its threads and vectors, its vectors, neither.
can = $(shell t=$$(mktemp) && echo 'int main(void) { return 0; }' \
	| $(CC) $(1) -x c -o "$$t" - >"$$t.log" 2>&1 && echo $(1); rm -f "$$t" "$$t.log")
OPENMP := $(or @TRIED@,-Wno-unknown-pragmas)
