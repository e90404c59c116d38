/*
 * This program is not linked with the library. It loads the library by each of its names, uses it
 * and unloads it. It continues after the last unloading, because the threads of the library then
 * still need its code.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
#include "vipl.h"

static int n, failed;

static void ok(int good, const char *what) {
	n++;
	printf("%sok %d - %s\n", good ? "" : "not ", n, what);
	failed += !good;
}

int main(int argc, char **argv) {
	const char *names[] = {"libvipl.so", "vipl.so", "libgnivipl.so", "libvipl.so.1"};
	const char *device = argc > 1 ? argv[1] : "/dev/via_lo";
	VIP_RETURN (*open)(const VIP_CHAR *, VIP_NIC_HANDLE *);
	VIP_RETURN (*shut)(VIP_NIC_HANDLE);
	VIP_NIC_HANDLE nic;
	unsigned i;

	for (i = 0; i < 4; i++) {
		void *l = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);

		ok(l != NULL, names[i]);
		if (!l) {
			printf("# %s\n", dlerror());
			continue;
		}
		*(void **)&open = dlsym(l, "VipOpenNic");
		*(void **)&shut = dlsym(l, "VipCloseNic");
		ok(open && shut, "its calls");
		ok(open(device, &nic) == VIP_SUCCESS, "open a NIC");
		ok(shut(nic) == VIP_SUCCESS, "close it");
		ok(dlclose(l) == 0, "dlclose");
		usleep(200000); /* time for the threads to run */
	}
	printf("1..%d\n", n);
	return failed != 0;
}
