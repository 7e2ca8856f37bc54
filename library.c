#include <stdio.h>
static __thread long own[600] = {5, 6, 7};
static int loads;
__attribute__((constructor)) static void load(void) { loads++; }
long library_value(int i) { return own[i]; }
void library_set(int i, long value) { own[i] = value; }
int library_loads(void) { return loads; }
