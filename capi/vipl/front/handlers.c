/* The Go half calls handlers of the program by these functions. */
#include "front.h"

_Thread_local int in_notify;

void vipl_call_notify(vipl_notify f, void *context, uintptr_t nic, uintptr_t vi, void *d) {
	in_notify++;
	f(context, (VIP_NIC_HANDLE)nic, (VIP_VI_HANDLE)vi, d);
	in_notify--;
	hand_over_mine();
}

void vipl_call_cq_notify(vipl_cq_notify f, void *context, uintptr_t nic, uintptr_t vi, int recv) {
	in_notify++;
	f(context, (VIP_NIC_HANDLE)nic, (VIP_VI_HANDLE)vi, recv);
	in_notify--;
	hand_over_mine();
}

void vipl_call_error(vipl_error f, void *context, uintptr_t nic, uintptr_t vi, uintptr_t cq, void *d,
	uint64_t op, uint32_t resource, uint32_t code) {
	VIP_ERROR_DESCRIPTOR e = {
		.NicHandle = (VIP_NIC_HANDLE)nic,
		.ViHandle = (VIP_VI_HANDLE)vi,
		.CQHandle = (VIP_CQ_HANDLE)cq,
		.DescriptorPtr = d,
		.OpCode = op,
		.ResourceCode = (VIP_RESOURCE_CODE)resource,
		.ErrorCode = (VIP_ERROR_CODE)code,
	};

	f(context, &e);
	hand_over_mine();
}
