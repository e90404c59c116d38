/*
 * A program as for cLAN: the earlier names of descriptor members, a ring of RDMA Writes
 * into the consumer's memory, which watches the last word of each slot and returns credits
 * the same way, with neither a receive posted nor a completion of the consumer. It is
 * written from the header and the specification alone and stays as it is.
 *
 *	clan NIC
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#include "vipl.h"

#define SLOTS 8
#define SLOT 4096
#define WORDS (SLOT / 4)
#define MESSAGES 5000

struct memory {
	VIP_DESCRIPTOR desc[SLOTS + 1]; /* RDMA has two segments: 64 bytes */
	VIP_UINT32 out[SLOTS][WORDS];
	volatile VIP_UINT32 in[SLOTS][WORDS];
	volatile VIP_UINT32 credit; /* written by the consumer */
	VIP_UINT32 credit_out;
};

struct invitation {
	VIP_UINT64 memory;
	VIP_MEM_HANDLE handle;
	VIP_UINT16 len;
	unsigned char host[32];
};

static const char *name = "/dev/clanvi0";
static VIP_NIC_HANDLE hNic;
static VIP_VI_HANDLE hVi;
static VIP_MEM_HANDLE hMem;
static struct memory *mem;
static int errors;

#define TRY(call)                                                                                  \
	do {                                                                                       \
		VIP_RETURN status = call;                                                          \
		if (status != VIP_SUCCESS) {                                                       \
			printf("%s line %d: status %d\n", __FILE__, __LINE__, (int)status);        \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static void OnError(VIP_PVOID Context, VIP_ERROR_DESCRIPTOR *Error)
{
	if (Error->ErrorCode != VIP_ERROR_CONN_LOST)
		++*(int *)Context;
}

static void Open(void)
{
	VIP_VI_ATTRIBUTES Vi = {VIP_SERVICE_RELIABLE_DELIVERY, 65536, 0, NULL, VIP_TRUE, VIP_FALSE};
	VIP_MEM_ATTRIBUTES Mem = {NULL, VIP_TRUE, VIP_FALSE};

	TRY(VipOpenNic(name, &hNic));
	TRY(VipErrorCallback(hNic, &errors, OnError));
	mem = (struct memory *)valloc(sizeof *mem);
	memset((void *)mem, 0, sizeof *mem);
	TRY(VipRegisterMem(hNic, mem, sizeof *mem, &Mem, &hMem));
	TRY(VipCreateVi(hNic, &Vi, NULL, NULL, &hVi));
}

static void Address(VIP_NET_ADDRESS *Addr, const unsigned char *Host, int Len, const char *Port)
{
	Addr->HostAddressLen = Len;
	Addr->DiscriminatorLen = strlen(Port);
	memcpy(Addr->HostAddress, Host, Len);
	memcpy(&Addr->HostAddress[Len], Port, strlen(Port));
}

static void Write(VIP_DESCRIPTOR *Desc, void *From, VIP_UINT64 To, VIP_MEM_HANDLE Handle, int Bytes)
{
	VIP_ADDRESS_SEGMENT *Remote = (VIP_ADDRESS_SEGMENT *)&Desc->Data[0];

	Desc->Control.Control = VIP_CONTROL_OP_RDMAWRITE;
	Desc->Control.SegCount = 2;
	Desc->Control.Reserved = 0;
	Desc->Control.Length = Bytes;
	Desc->Control.Status = 0;
	Remote->Data.AddressBits = To;
	Remote->Handle = Handle;
	Remote->Reserved = 0;
	Desc->Data[1].Data.Address = From;
	Desc->Data[1].Handle = hMem;
	Desc->Data[1].Length = Bytes;
	TRY(VipPostSend(hVi, Desc, hMem));
}

/* Reap waits by looking at the status, and then takes the descriptor. */
static void Reap(VIP_DESCRIPTOR *Desc)
{
	VIP_DESCRIPTOR *Done;

	while (!(Desc->Control.Status & VIP_STATUS_DONE))
		;
	TRY(VipSendDone(hVi, &Done));
	if (Done != Desc || Desc->Control.Status & VIP_STATUS_ERROR_MASK) {
		printf("descriptor %p for %p, status %x\n", (void *)Done, (void *)Desc, (unsigned)Desc->Control.Status);
		exit(1);
	}
}

static void Producer(struct invitation *There, VIP_UINT64 Credit)
{
	VIP_UINT32 n, i;

	for (n = 0; n < MESSAGES; n++) {
		VIP_DESCRIPTOR *Desc = &mem->desc[n % SLOTS];
		VIP_UINT32 *Out = mem->out[n % SLOTS];

		while (n - mem->credit >= SLOTS)
			;
		if (n >= SLOTS)
			Reap(Desc);
		for (i = 0; i < WORDS; i++)
			Out[i] = n + 1;
		Write(Desc, Out, There->memory + Credit + (n % SLOTS) * SLOT, There->handle, SLOT);
	}
	while (mem->credit != MESSAGES)
		;
	for (i = 0; i < SLOTS; i++)
		Reap(&mem->desc[n++ % SLOTS]);
}

static void Consumer(struct invitation *There, VIP_UINT64 Credit)
{
	VIP_UINT32 n, i, told = 0;

	for (n = 0; n < MESSAGES; n++) {
		volatile VIP_UINT32 *In = mem->in[n % SLOTS];

		while (In[WORDS - 1] != n + 1)
			;
		for (i = 0; i < WORDS; i++)
			if (In[i] != n + 1) {
				printf("message %u, word %u: %u\n", n, i, In[i]);
				exit(1);
			}
		if (n + 1 - told >= SLOTS / 2 || n + 1 == MESSAGES) {
			if (told > 0)
				Reap(&mem->desc[SLOTS]);
			told = mem->credit_out = n + 1;
			Write(&mem->desc[SLOTS], &mem->credit_out, There->memory + Credit, There->handle, 4);
		}
	}
	Reap(&mem->desc[SLOTS]);
}

static void Invite(struct invitation *Me)
{
	VIP_NIC_ATTRIBUTES Nic;

	TRY(VipQueryNic(hNic, &Nic));
	memset(Me, 0, sizeof *Me);
	Me->memory = (VIP_UINT64)(size_t)mem;
	Me->handle = hMem;
	Me->len = Nic.NicAddressLen;
	memcpy(Me->host, Nic.LocalNicAddress, Nic.NicAddressLen);
}

int main(int argc, char **argv)
{
	char Local[64], Remote[64];
	struct invitation Me, There;
	VIP_VI_ATTRIBUTES Vi;
	VIP_CONN_HANDLE hConn;
	VIP_RETURN Status;
	int up[2], down[2], s;
	pid_t pid;

	if (argc > 1)
		name = argv[1];
	if (pipe(up) || pipe(down))
		return 1;
	pid = fork();
	Open();
	Invite(&Me);
	if (write(pid ? down[1] : up[1], &Me, sizeof Me) != sizeof Me || read(pid ? up[0] : down[0], &There, sizeof There) != sizeof There)
		return 1;
	if (pid == 0) {
		/* the host part of one's own address was never looked at */
		memset(Local, 0xEE, sizeof Local);
		((VIP_NET_ADDRESS *)Local)->HostAddressLen = Me.len;
		((VIP_NET_ADDRESS *)Local)->DiscriminatorLen = 4;
		memcpy(((VIP_NET_ADDRESS *)Local)->HostAddress + Me.len, "ring", 4);
		TRY(VipConnectWait(hNic, (VIP_NET_ADDRESS *)Local, VIP_INFINITE, (VIP_NET_ADDRESS *)Remote, &Vi, &hConn));
		TRY(VipConnectAccept(hConn, hVi));
		Consumer(&There, (VIP_UINT64)((char *)&mem->credit - (char *)mem));
		while (VipQueryVi(hVi, (VIP_VI_STATE *)&s, &Vi, (VIP_BOOLEAN *)Local, (VIP_BOOLEAN *)Remote) == VIP_SUCCESS && s == VIP_STATE_CONNECTED)
			;
		TRY(VipDisconnect(hVi));
		TRY(VipDestroyVi(hVi));
		TRY(VipDeregisterMem(hNic, mem, hMem));
		TRY(VipCloseNic(hNic));
		return errors;
	}
	Address((VIP_NET_ADDRESS *)Local, Me.host, Me.len, "back");
	Address((VIP_NET_ADDRESS *)Remote, There.host, There.len, "ring");
	do
		Status = VipConnectRequest(hVi, (VIP_NET_ADDRESS *)Local, (VIP_NET_ADDRESS *)Remote, 10000, &Vi);
	while (Status == VIP_NO_MATCH || Status == VIP_TIMEOUT);
	TRY(Status);
	Producer(&There, (VIP_UINT64)((char *)mem->in - (char *)mem));
	TRY(VipDisconnect(hVi));
	TRY(VipDestroyVi(hVi));
	TRY(VipCloseNic(hNic));
	if (waitpid(pid, &s, 0) != pid || s != 0 || errors) {
		printf("FAILED %x %d\n", s, errors);
		return 1;
	}
	printf("%d messages through memory\n", MESSAGES);
	return 0;
}
