/*
 * This file uses names that programs take from the headers of M-VIA, cLAN, VI-GM and Intel, in
 * addition to those of the Developer's Guide. It is compiled as C and as C++, with and without
 * VIPL095, and with a second header of the interface after the first.
 */
#ifdef DIALECT095
#define VIPL095
#endif
#include "vipl.h"

/*
 * A program may have a header of its own. Its guard is one of these, so it must not be read
 * here.
 */
#ifndef _VIPL_
#error "_VIPL_ is not defined"
#endif
#ifndef _VIPL_H
#error "_VIPL_H is not defined"
#endif
#include "vipl.h"

static VIP_LONG calls;
static VIP_SHORT last;

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e) {
	enum _VIP_ERROR_CODE code = e->ErrorCode;
	enum _VIP_RESOURCE_CODE resource = e->ResourceCode;

	(void)context;
	calls += code == VIP_ERROR_CONN_LOST && resource == VIP_RESOURCE_VI;
}

static void on_send(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d) {
	(void)context, (void)nic, (void)vi;
	last = (VIP_SHORT)d->Control.SegCount;
}

static void on_entry(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_BOOLEAN recv) {
	(void)context, (void)nic, (void)vi, (void)recv;
}

/* These are tables of functions, as in programs that load the library at run time. */
static struct {
	VIP_RETURN (*error_callback)(VIP_NIC_HANDLE, VIP_PVOID, VIP_ERROR_HANDLER);
	VIP_RETURN (*send_notify)(VIP_VI_HANDLE, VIP_PVOID, VIP_VI_CALLBACK);
	VIP_RETURN (*cq_notify)(VIP_CQ_HANDLE, VIP_PVOID, VIP_CQ_CALLBACK);
} vipl = {VipErrorCallback, VipSendNotify, VipCQNotify};

int main(void) {
	VIP_ERROR_HANDLER error = on_error;
	VIP_VI_CALLBACK send = on_send;
	VIP_CQ_CALLBACK entry = on_entry;
	static VIP_NIC_ATTRIBUTES nic;
	VIP_DESCRIPTOR d, *p = &d;
	struct _VIP_NET_ADDRESS address;
	struct _VIP_MEM_ATTRIBUTES mem;

	(void)address, (void)mem;
	/* A descriptor has two spellings. */
	p->Control.SegCount = 1;
	p->Control.Next.Descriptor = p;
	p->Data[0].Data.AddressBits = 7;
	p->Data[0].Length = 3;
	if (p->CS.SegCount != 1 || p->CS.Next.Address != p || p->DS[0].Local.Length != 3 || p->DS[0].Remote.Data.AddressBits != 7)
		return 1;
	/* Programs compare levels as numbers. */
	nic.ReliabilityLevelSupport = VIP_BASE_SERVICES;
	if (nic.ReliabilityLevelSupport < VIP_SERVICE_RELIABLE_RECEPTION || VIP_BASE_SERVICES != 7)
		return 2;
	if ((VIP_RETURN)VIP_ERROR != VIP_DESCRIPTOR_ERROR || VIP_SMI_AUTODISCOVERY != 1)
		return 3;
	/* All functions refuse NULL and call no handler. */
	if (vipl.error_callback(NULL, NULL, error) != VIP_INVALID_PARAMETER || vipl.send_notify(NULL, NULL, send) != VIP_INVALID_PARAMETER ||
		vipl.cq_notify(NULL, NULL, entry) != VIP_INVALID_PARAMETER)
		return 4;
	return calls != 0 || last != 0;
}
