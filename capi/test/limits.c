/*
 * This program checks that the limits are those of the attributes of a NIC. That many objects of
 * each kind can be created, one more fails with VIP_ERROR_RESOURCE, and after one is destroyed
 * another can be created. Tags, NICs and descriptors are tested in conform.c. [VIA 8.2] [VIA 8.3]
 */
#include "tap.h"

static VIP_NIC_HANDLE nic;
static VIP_NIC_ATTRIBUTES na;
static VIP_VI_ATTRIBUTES attrs;
static char memory[4096];

/* Each of these functions creates an object, or destroys the object of a handle. */
static VIP_RETURN make_vi(void **h) { return VipCreateVi(nic, &attrs, NULL, NULL, h); }

static VIP_RETURN end_vi(void *h) { return VipDestroyVi(h); }

static VIP_RETURN make_cq(void **h) { return VipCreateCQ(nic, 1, h); }

static VIP_RETURN end_cq(void *h) { return VipDestroyCQ(h); }

static VIP_RETURN make_region(void **h) {
	VIP_MEM_HANDLE m = 0;
	VIP_RETURN r = VipRegisterMem(nic, memory, sizeof memory, NULL, &m);

	*h = (void *)(size_t)m;
	return r;
}

static VIP_RETURN end_region(void *h) { return VipDeregisterMem(nic, memory, (VIP_MEM_HANDLE)(size_t)h); }

static void limit(const char *what, VIP_ULONG most, VIP_RETURN (*make)(void **), VIP_RETURN (*end)(void *)) {
	void **h = calloc(most + 1, sizeof *h);
	VIP_RETURN r = VIP_SUCCESS;
	VIP_ULONG i, n = 0;
	int good = 1;

	while (n <= most && (r = make(&h[n])) == VIP_SUCCESS)
		n++;
	ok(n == most, "%lu %s, of %lu", n, what, most);
	ok(r == VIP_ERROR_RESOURCE, "one more is %d", r);
	need(end(h[n / 2]));
	code(make(&h[n / 2]), VIP_SUCCESS, "one that was given back can be had again");
	code(make(&h[n]), VIP_ERROR_RESOURCE, "and no other");
	for (i = 0; i < n; i++)
		good &= end(h[i]) == VIP_SUCCESS;
	ok(good, "all %s are given back", what);
	free(h);
}

int main(int argc, char **argv) {
	VIP_VI_HANDLE vi;

	if (argc > 1)
		tap_nic = argv[1];
	need(VipOpenNic(tap_nic, &nic));
	need(VipQueryNic(nic, &na));
	attrs = vi_attrs(VIP_SERVICE_RELIABLE_DELIVERY, NULL);
	limit("VIs", na.MaxVI, make_vi, end_vi);
	limit("completion queues", na.MaxCQ, make_cq, end_cq);
	limit("regions", na.MaxRegisterRegions, make_region, end_region);
	attrs.MaxTransferSize = na.MaxTransferSize + 1;
	code(VipCreateVi(nic, &attrs, NULL, NULL, &vi), VIP_INVALID_MTU, "more than MaxTransferSize");
	need(VipCloseNic(nic));
	return tap_end();
}
