/* The interface as a program of its own carries it: of 1.0, with a net address that is padded. */
#ifndef _VIPL_
#define _VIPL_ 1

#define IN
#define OUT
#define VIP_INFINITE 0xFFFFFFFF
#define VIP_TRUE (1)
#define VIP_FALSE (0)

typedef void *VIP_PVOID;
typedef int VIP_BOOLEAN;
typedef char VIP_CHAR;
typedef unsigned short VIP_USHORT;
typedef unsigned long VIP_ULONG;
typedef unsigned long long VIP_UINT64;
typedef unsigned int VIP_UINT32;
typedef unsigned short VIP_UINT16;
typedef unsigned char VIP_UINT8;
typedef VIP_PVOID VIP_QOS, VIP_NIC_HANDLE, VIP_VI_HANDLE, VIP_PROTECTION_HANDLE, VIP_CONN_HANDLE, VIP_CQ_HANDLE;
typedef VIP_UINT32 VIP_MEM_HANDLE;
typedef VIP_USHORT VIP_RELIABILITY_LEVEL;

enum VIP_RETURN {
	VIP_SUCCESS, VIP_NOT_DONE, VIP_INVALID_PARAMETER, VIP_ERROR_RESOURCE, VIP_TIMEOUT, VIP_REJECT, VIP_INVALID_RELIABILITY_LEVEL,
	VIP_INVALID_MTU, VIP_INVALID_QOS, VIP_INVALID_PTAG, VIP_INVALID_RDMAREAD, VIP_DESCRIPTOR_ERROR, VIP_INVALID_STATE,
	VIP_ERROR_NAMESERVICE, VIP_NO_MATCH
};

enum VIP_VI_STATE { VIP_STATE_IDLE, VIP_STATE_CONNECTED, VIP_STATE_CONNECT_PENDING, VIP_STATE_ERROR };

#define VIP_SERVICE_RELIABLE_DELIVERY 2

struct VIP_NET_ADDRESS {
	VIP_UINT16 HostAddressLen;
	VIP_UINT16 DiscriminatorLen;
	VIP_UINT8 HostAddress[1];
	VIP_UINT8 pad[3];
};

struct VIP_NIC_ATTRIBUTES {
	VIP_CHAR Name[64];
	VIP_ULONG HardwareVersion, ProviderVersion;
	VIP_UINT16 NicAddressLen;
	const VIP_UINT8 *LocalNicAddress;
	VIP_BOOLEAN ThreadSafe;
	VIP_UINT16 MaxDiscriminatorLen;
	VIP_ULONG MaxRegisterBytes, MaxRegisterRegions, MaxRegisterBlockBytes, MaxVI, MaxDescriptorsPerQueue, MaxSegmentsPerDesc;
	VIP_ULONG MaxCQ, MaxCQEntries, MaxTransferSize, NativeMTU, MaxPtags;
	VIP_RELIABILITY_LEVEL ReliabilityLevelSupport, RDMAReadSupport;
};

struct VIP_VI_ATTRIBUTES {
	VIP_RELIABILITY_LEVEL ReliabilityLevel;
	VIP_ULONG MaxTransferSize;
	VIP_QOS QoS;
	VIP_PROTECTION_HANDLE Ptag;
	VIP_BOOLEAN EnableRdmaWrite, EnableRdmaRead;
};

struct VIP_MEM_ATTRIBUTES {
	VIP_PROTECTION_HANDLE Ptag;
	VIP_BOOLEAN EnableRdmaWrite, EnableRdmaRead;
};

union VIP_PVOID64 {
	VIP_UINT64 AddressBits;
	VIP_PVOID Address;
};

struct VIP_DESCRIPTOR {
	struct {
		VIP_PVOID64 Next;
		VIP_MEM_HANDLE NextHandle;
		VIP_UINT16 SegCount, Control;
		VIP_UINT32 Reserved, ImmediateData, Length, Status;
	} CS;
	union {
		struct { VIP_PVOID64 Data; VIP_MEM_HANDLE Handle; VIP_UINT32 Reserved; } Remote;
		struct { VIP_PVOID64 Data; VIP_MEM_HANDLE Handle; VIP_UINT32 Length; } Local;
	} DS[2];
};

#define VIP_CONTROL_OP_SENDRECV 0
#define VIP_CONTROL_IMMEDIATE 4
#define VIP_STATUS_ERROR_MASK 0x1FE

#endif
