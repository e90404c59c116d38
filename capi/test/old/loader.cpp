/*
 * A program in C++ of its time with a header of its own, which loads the library at run
 * time: it counts NICs until one cannot be opened, has clients and servers as threads of
 * one process on two NICs, and measures them by one completion queue for each. It is
 * written from the specification alone and stays as it is.
 *
 *	loader BASE		BASE: the name of NICs without their number, as VINIC
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "vipl10.h"

#define WORKERS 4
#define QUEUE 8
#define MESSAGES 500
#define SIZE 1024

static void *dll;

#define ENTRY(name, args)                       \
	typedef VIP_RETURN(*f##name) args;      \
	static f##name name

ENTRY(VipOpenNic, (const VIP_CHAR *, VIP_NIC_HANDLE *));
ENTRY(VipCloseNic, (VIP_NIC_HANDLE));
ENTRY(VipQueryNic, (VIP_NIC_HANDLE, VIP_NIC_ATTRIBUTES *));
ENTRY(VipCreatePtag, (VIP_NIC_HANDLE, VIP_PROTECTION_HANDLE *));
ENTRY(VipDestroyPtag, (VIP_NIC_HANDLE, VIP_PROTECTION_HANDLE));
ENTRY(VipRegisterMem, (VIP_NIC_HANDLE, VIP_PVOID, VIP_ULONG, VIP_MEM_ATTRIBUTES *, VIP_MEM_HANDLE *));
ENTRY(VipDeregisterMem, (VIP_NIC_HANDLE, VIP_PVOID, VIP_MEM_HANDLE));
ENTRY(VipCreateCQ, (VIP_NIC_HANDLE, VIP_ULONG, VIP_CQ_HANDLE *));
ENTRY(VipResizeCQ, (VIP_CQ_HANDLE, VIP_ULONG));
ENTRY(VipDestroyCQ, (VIP_CQ_HANDLE));
ENTRY(VipCQDone, (VIP_CQ_HANDLE, VIP_VI_HANDLE *, VIP_BOOLEAN *));
ENTRY(VipCQWait, (VIP_CQ_HANDLE, VIP_ULONG, VIP_VI_HANDLE *, VIP_BOOLEAN *));
ENTRY(VipCreateVi, (VIP_NIC_HANDLE, VIP_VI_ATTRIBUTES *, VIP_CQ_HANDLE, VIP_CQ_HANDLE, VIP_VI_HANDLE *));
ENTRY(VipDestroyVi, (VIP_VI_HANDLE));
ENTRY(VipQueryVi, (VIP_VI_HANDLE, VIP_VI_STATE *, VIP_VI_ATTRIBUTES *, VIP_BOOLEAN *, VIP_BOOLEAN *));
ENTRY(VipConnectWait, (VIP_NIC_HANDLE, VIP_NET_ADDRESS *, VIP_ULONG, VIP_NET_ADDRESS *, VIP_VI_ATTRIBUTES *, VIP_CONN_HANDLE *));
ENTRY(VipConnectAccept, (VIP_CONN_HANDLE, VIP_VI_HANDLE));
ENTRY(VipConnectRequest, (VIP_VI_HANDLE, VIP_NET_ADDRESS *, VIP_NET_ADDRESS *, VIP_ULONG, VIP_VI_ATTRIBUTES *));
ENTRY(VipDisconnect, (VIP_VI_HANDLE));
ENTRY(VipPostSend, (VIP_VI_HANDLE, VIP_DESCRIPTOR *, VIP_MEM_HANDLE));
ENTRY(VipPostRecv, (VIP_VI_HANDLE, VIP_DESCRIPTOR *, VIP_MEM_HANDLE));
ENTRY(VipSendDone, (VIP_VI_HANDLE, VIP_DESCRIPTOR **));
ENTRY(VipRecvDone, (VIP_VI_HANDLE, VIP_DESCRIPTOR **));

#define LOAD(name)                                                       \
	if (!(name = (f##name)dlsym(dll, #name))) {                      \
		printf("no %s\n", #name);                                \
		exit(1);                                                 \
	}

static void load()
{
	if (!(dll = dlopen("vipl.so", RTLD_NOW | RTLD_GLOBAL))) {
		printf("%s\n", dlerror());
		exit(1);
	}
	LOAD(VipOpenNic) LOAD(VipCloseNic) LOAD(VipQueryNic) LOAD(VipCreatePtag) LOAD(VipDestroyPtag)
	LOAD(VipRegisterMem) LOAD(VipDeregisterMem) LOAD(VipCreateCQ) LOAD(VipResizeCQ) LOAD(VipDestroyCQ) LOAD(VipCQDone) LOAD(VipCQWait)
	LOAD(VipCreateVi) LOAD(VipDestroyVi) LOAD(VipQueryVi) LOAD(VipConnectWait) LOAD(VipConnectAccept) LOAD(VipConnectRequest)
	LOAD(VipDisconnect) LOAD(VipPostSend) LOAD(VipPostRecv) LOAD(VipSendDone) LOAD(VipRecvDone)
}

#define MUST(call)                                                                   \
	do {                                                                         \
		VIP_RETURN status = call;                                               \
		if (status != VIP_SUCCESS) {                                         \
			printf("line %d: %s: %d\n", __LINE__, #call, (int)status);   \
			exit(1);                                                     \
		}                                                                    \
	} while (0)

class Nic {
public:
	VIP_NIC_HANDLE handle;
	VIP_NIC_ATTRIBUTES attributes;
	VIP_MEM_ATTRIBUTES memory;

	bool Open(const char *name)
	{
		if (VipOpenNic(name, &handle) != VIP_SUCCESS)
			return false;
		MUST(VipQueryNic(handle, &attributes));
		MUST(VipCreatePtag(handle, &memory.Ptag));
		memory.EnableRdmaWrite = memory.EnableRdmaRead = VIP_FALSE;
		return true;
	}

	void Close()
	{
		MUST(VipDestroyPtag(handle, memory.Ptag));
		MUST(VipCloseNic(handle));
	}

	/* A discriminator as long as they may be, padded with zeros. */
	VIP_NET_ADDRESS *Address(const char *name)
	{
		VIP_NET_ADDRESS *a = (VIP_NET_ADDRESS *)malloc(sizeof(VIP_NET_ADDRESS) + attributes.NicAddressLen + attributes.MaxDiscriminatorLen);

		a->HostAddressLen = attributes.NicAddressLen;
		a->DiscriminatorLen = attributes.MaxDiscriminatorLen;
		memcpy(a->HostAddress, attributes.LocalNicAddress, attributes.NicAddressLen);
		memset(a->HostAddress + attributes.NicAddressLen, 0, attributes.MaxDiscriminatorLen);
		strcpy((char *)a->HostAddress + attributes.NicAddressLen, name);
		return a;
	}
};

static Nic first, second;

/* One end: descriptors and data of its own, and one queue for both directions. */
class Target {
	Nic *nic;
	VIP_DESCRIPTOR *descriptors;
	VIP_MEM_HANDLE handle, data_handle;
	VIP_CQ_HANDLE queue;
	char *data;

public:
	VIP_VI_HANDLE vi;
	int sends, receives;

	Target(Nic *n) : nic(n), sends(0), receives(0)
	{
		VIP_VI_ATTRIBUTES a;
		VIP_BOOLEAN no_sends, no_receives;
		VIP_VI_STATE state;

		descriptors = (VIP_DESCRIPTOR *)valloc(2 * QUEUE * sizeof(VIP_DESCRIPTOR));
		data = (char *)malloc(2 * QUEUE * SIZE);
		MUST(VipRegisterMem(nic->handle, descriptors, 2 * QUEUE * sizeof(VIP_DESCRIPTOR), &nic->memory, &handle));
		MUST(VipRegisterMem(nic->handle, data, 2 * QUEUE * SIZE, &nic->memory, &data_handle));
		MUST(VipCreateCQ(nic->handle, QUEUE, &queue));
		MUST(VipResizeCQ(queue, 2 * QUEUE));
		a.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
		a.MaxTransferSize = nic->attributes.MaxTransferSize;
		a.QoS = 0;
		a.Ptag = nic->memory.Ptag;
		a.EnableRdmaWrite = nic->memory.EnableRdmaWrite;
		a.EnableRdmaRead = nic->memory.EnableRdmaRead;
		MUST(VipCreateVi(nic->handle, &a, queue, queue, &vi));
		MUST(VipQueryVi(vi, &state, &a, &no_sends, &no_receives));
		for (int i = 0; i < QUEUE; i++)
			Receive(QUEUE + i);
	}

	VIP_DESCRIPTOR *Format(int i)
	{
		VIP_DESCRIPTOR *d = &descriptors[i];

		d->CS.SegCount = 1;
		d->CS.Control = VIP_CONTROL_OP_SENDRECV;
		d->CS.Reserved = 0;
		d->CS.Length = SIZE;
		d->CS.Status = 0;
		d->DS[0].Local.Data.AddressBits = (VIP_UINT64)(size_t)(data + i * SIZE);
		d->DS[0].Local.Handle = data_handle;
		d->DS[0].Local.Length = SIZE;
		return d;
	}

	void Receive(int i) { MUST(VipPostRecv(vi, Format(i), handle)); }

	void Send(int i, int serial)
	{
		VIP_DESCRIPTOR *d = Format(i);

		memset(data + i * SIZE, serial, SIZE);
		d->CS.Control |= VIP_CONTROL_IMMEDIATE;
		d->CS.ImmediateData = serial;
		MUST(VipPostSend(vi, d, handle));
	}

	/* Next waits a second at most, again and again, and returns which queue it was. */
	bool Next(VIP_DESCRIPTOR **d)
	{
		VIP_VI_HANDLE which;
		VIP_BOOLEAN receive;
		VIP_RETURN r;

		while ((r = VipCQDone(queue, &which, &receive)) == VIP_NOT_DONE && (r = VipCQWait(queue, 1000, &which, &receive)) == VIP_TIMEOUT)
			;
		MUST(r);
		if (which != vi)
			exit(1);
		MUST(receive ? VipRecvDone(vi, d) : VipSendDone(vi, d));
		if ((*d)->CS.Status & VIP_STATUS_ERROR_MASK)
			exit(1);
		return receive != VIP_FALSE;
	}

	void Run(bool client)
	{
		VIP_DESCRIPTOR *d;

		if (client)
			Send(0, 0);
		while (receives < MESSAGES || sends < MESSAGES) {
			if (!Next(&d)) {
				sends++;
				continue;
			}
			const char *p = (const char *)d->DS[0].Local.Data.Address;
			int want = receives++;
			if (d->CS.Length != SIZE || (int)d->CS.ImmediateData != want || p[0] != (char)want || p[SIZE - 1] != (char)want) {
				printf("message %d: %u bytes, %u\n", want, d->CS.Length, d->CS.ImmediateData);
				exit(1);
			}
			Receive(d - descriptors);
			if (client ? receives < MESSAGES : true)
				Send((client ? receives : want) % QUEUE, client ? receives : want);
		}
	}

	void Close()
	{
		VIP_DESCRIPTOR *d;
		VIP_RETURN r;

		MUST(VipDisconnect(vi));
		do
			r = VipRecvDone(vi, &d);
		while (r == VIP_SUCCESS || (r == VIP_DESCRIPTOR_ERROR && d));
		do
			r = VipSendDone(vi, &d);
		while (r == VIP_SUCCESS || (r == VIP_DESCRIPTOR_ERROR && d));
		MUST(VipDestroyVi(vi));
		MUST(VipDestroyCQ(queue));
		MUST(VipDeregisterMem(nic->handle, descriptors, handle));
		MUST(VipDeregisterMem(nic->handle, data, data_handle));
		free(descriptors);
		free(data);
	}
};

static void *client(void *number)
{
	char name[16];
	Target t(&second);
	VIP_VI_ATTRIBUTES remote;
	VIP_RETURN r;

	sprintf(name, "worker %d", (int)(size_t)number);
	VIP_NET_ADDRESS *mine = second.Address("client"), *there = first.Address(name);
	do
		r = VipConnectRequest(t.vi, mine, there, 1000, &remote);
	while (r == VIP_TIMEOUT || r == VIP_NO_MATCH || r == VIP_ERROR_RESOURCE || r == VIP_REJECT);
	MUST(r);
	t.Run(true);
	t.Close();
	free(mine);
	free(there);
	return 0;
}

static void *server(void *number)
{
	char name[16];
	Target t(&first);
	VIP_VI_ATTRIBUTES remote;
	VIP_CONN_HANDLE connection;
	VIP_RETURN r;

	sprintf(name, "worker %d", (int)(size_t)number);
	VIP_NET_ADDRESS *mine = first.Address(name), *caller = first.Address("");
	while ((r = VipConnectWait(first.handle, mine, 1000, caller, &remote, &connection)) == VIP_TIMEOUT)
		;
	MUST(r);
	MUST(VipConnectAccept(connection, t.vi));
	t.Run(false);

	/* The client leaves first. */
	VIP_VI_STATE state;
	VIP_BOOLEAN no_sends, no_receives;
	do
		MUST(VipQueryVi(t.vi, &state, &remote, &no_sends, &no_receives));
	while (state == VIP_STATE_CONNECTED);
	t.Close();
	free(mine);
	free(caller);
	return 0;
}

int main(int argc, char **argv)
{
	const char *base = argc > 1 ? argv[1] : "VINIC";
	char name[64];
	VIP_NIC_HANDLE found[64];
	int n = 0;
	pthread_t t[2 * WORKERS];

	load();
	for (; n < 64; n++) {
		sprintf(name, "%s%d", base, n);
		if (VipOpenNic(name, &found[n]) != VIP_SUCCESS)
			break;
	}
	if (n == 0 || n == 64) {
		printf("%d NICs of the name %s\n", n, base);
		return 1;
	}
	for (int i = 0; i < n; i++)
		MUST(VipCloseNic(found[i]));
	sprintf(name, "%s0", base);
	if (!first.Open(name) || !second.Open(name))
		return 1;
	for (size_t i = 0; i < WORKERS; i++) {
		pthread_create(&t[2 * i], 0, server, (void *)i);
		pthread_create(&t[2 * i + 1], 0, client, (void *)i);
	}
	for (int i = 0; i < 2 * WORKERS; i++)
		pthread_join(t[i], 0);
	second.Close();
	first.Close();
	if (dlclose(dll) != 0)
		return 1;
	printf("%d NICs, %d pairs, %d messages each way\n", n, WORKERS, MESSAGES);
	return 0;
}
