/*
 * vipl.h - the interface of the VI Provider Library (VIPL) of the Virtual
 * Interface Architecture 1.0, as libvipl provides it.
 *
 * It can be used from C89 to C23 and from C++98 to C++20. It has both dialects of descriptor
 * members: CS and DS, and the earlier Control and Data. Programs may define VIPL095, which changes
 * nothing.
 *
 * Manual pages: vipl(7) and one for each group of calls.
 *
 * Unless a comment says otherwise
 *  - lengths are in bytes and times in milliseconds;
 *  - a NULL pointer where an object is wanted, and a handle that is wrong, was
 *    closed, or belongs to another NIC handle, give VIP_INVALID_PARAMETER;
 *  - every function may be called from any thread at any time; the exception
 *    are signal handlers, which may call none;
 *  - in a child of fork(), if the parent had opened a NIC, every function
 *    gives VIP_ERROR_RESOURCE.
 */
/* These are the guards of other headers of this interface. If one of those headers was included
 * before, this header adds nothing to it. If one is included after this header, it is empty. */
#if !defined(VIPL_H) && !defined(_VIPL_) && !defined(_VIPL_H)
#define VIPL_H
#define _VIPL_ 1
#define _VIPL_H 1

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef IN
#define IN
#endif
#ifndef OUT
#define OUT
#endif

/* C89 and C99 do not have unnamed unions, but both compilers support them. */
#if defined(__GNUC__)
#define VIPL_EXTENSION __extension__
#else
#define VIPL_EXTENSION
#endif

/* ---- Base types --------------------------------------------------------- */

typedef void *VIP_PVOID;
typedef int VIP_BOOLEAN;
typedef char VIP_CHAR;
typedef unsigned char VIP_UCHAR;
typedef short VIP_SHORT;
typedef unsigned short VIP_USHORT;
typedef long VIP_LONG;
typedef unsigned long VIP_ULONG; /* 8 bytes where pointers have 8 */
typedef unsigned char VIP_UINT8;
typedef unsigned short VIP_UINT16;
typedef unsigned int VIP_UINT32;
#if defined(__LP64__)
typedef unsigned long VIP_UINT64;
#else
VIPL_EXTENSION typedef unsigned long long VIP_UINT64;
#endif

#ifndef VIP_TRUE
#define VIP_TRUE 1
#endif
#ifndef VIP_FALSE
#define VIP_FALSE 0
#endif

/* A memory handle names a registered region. Programs send it to their peers. It is never 0. */
typedef VIP_UINT32 VIP_MEM_HANDLE;

/* Handles are numbers and are never dereferenced. NULL is never a valid handle. */
typedef void *VIP_NIC_HANDLE;
typedef void *VIP_VI_HANDLE;
typedef void *VIP_CQ_HANDLE;
typedef void *VIP_CONN_HANDLE;
typedef void *VIP_PROTECTION_HANDLE;
typedef void *VIP_EVENT_HANDLE;

typedef void *VIP_QOS; /* transmitted, but has no effect */

/* A timeout of VIP_INFINITE means no limit. 0xFFFFFFFF means the same. */
#define VIP_INFINITE (~0UL)

/* ---- Return codes ------------------------------------------------------- */

typedef enum {
	VIP_SUCCESS = 0,
	VIP_NOT_DONE = 1,                   /* the polled operation is not complete */
	VIP_INVALID_PARAMETER = 2,          /* an invalid handle, NULL or an invalid value */
	VIP_ERROR_RESOURCE = 3,             /* resources are insufficient, or still in use */
	VIP_TIMEOUT = 4,
	VIP_REJECT = 5,                     /* the remote consumer rejected the connection */
	VIP_INVALID_RELIABILITY_LEVEL = 6,  /* the level is not supported, or differs from that of the remote VI */
	VIP_INVALID_MTU = 7,                /* MaxTransferSize is not supported */
	VIP_INVALID_QOS = 8,
	VIP_INVALID_PTAG = 9,
	VIP_INVALID_RDMAREAD = 10,          /* RDMA Read was requested but is not supported */
	VIP_DESCRIPTOR_ERROR = 11,          /* the descriptor ended with an error, or is NULL because the queue is empty */
	VIP_INVALID_STATE = 12,             /* the VI is in the wrong state */
	VIP_ERROR_NAMESERVICE = 13,
	VIP_NO_MATCH = 14,                  /* the remote side does not wait for the discriminator */
	VIP_NOT_REACHABLE = 15,             /* no path to the remote host */
	VIP_ERROR_NOT_SUPPORTED = 16
} VIP_RETURN;

#define VIP_ERROR VIP_DESCRIPTOR_ERROR

/* ---- Addresses ---------------------------------------------------------- */

/*
 * A VI network address begins at HostAddress with the HostAddressLen bytes of the host part. The
 * DiscriminatorLen bytes of the discriminator follow without a gap. An address needs at most
 * sizeof(VIP_NET_ADDRESS) + NicAddressLen + MaxDiscriminatorLen bytes. With VI/TCP and FC-VI the
 * host part is an IP address (4 or 16 bytes), optionally followed by the 2 bytes of a port.
 */
typedef struct _VIP_NET_ADDRESS {
	VIP_UINT16 HostAddressLen;
	VIP_UINT16 DiscriminatorLen;
	VIP_UINT8 HostAddress[1];
} VIP_NET_ADDRESS;

/* ---- NICs --------------------------------------------------------------- */

typedef VIP_USHORT VIP_RELIABILITY_LEVEL; /* one level, or a mask of levels */

#define VIP_SERVICE_UNRELIABLE 0x01
#define VIP_SERVICE_RELIABLE_DELIVERY 0x02
#define VIP_SERVICE_RELIABLE_RECEPTION 0x04
#define VIP_BASE_SERVICES (VIP_SERVICE_UNRELIABLE | VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION)

/*
 * These bits may be added to the level of a VI. The first is cLAN's variant of acknowledgements,
 * which is ignored. The second is Descriptor Flow Control: messages wait until the remote side has
 * posted the receive that they consume. Both sides must request it.
 */
#define VIP_SERVICE_ACK (1 << 14)
#define VIP_SERVICE_DFC (1 << 15)

typedef struct _VIP_NIC_ATTRIBUTES {
	VIP_CHAR Name[64];                  /* the name by which it was opened */
	VIP_ULONG HardwareVersion;
	VIP_ULONG ProviderVersion;
	VIP_UINT16 NicAddressLen;           /* length of the host part of an address */
	const VIP_UINT8 *LocalNicAddress;   /* valid while the NIC is open */
	VIP_BOOLEAN ThreadSafe;
	VIP_UINT16 MaxDiscriminatorLen;
	VIP_ULONG MaxRegisterBytes;
	VIP_ULONG MaxRegisterRegions;
	VIP_ULONG MaxRegisterBlockBytes;
	VIP_ULONG MaxVI;
	VIP_ULONG MaxDescriptorsPerQueue;
	VIP_ULONG MaxSegmentsPerDesc;
	VIP_ULONG MaxCQ;
	VIP_ULONG MaxCQEntries;
	VIP_ULONG MaxTransferSize;
	VIP_ULONG NativeMTU;
	VIP_ULONG MaxPtags;
	VIP_RELIABILITY_LEVEL ReliabilityLevelSupport; /* mask of supported levels */
	VIP_RELIABILITY_LEVEL RDMAReadSupport;         /* mask of levels with RDMA Read */
} VIP_NIC_ATTRIBUTES;

/* ---- VIs and memory ----------------------------------------------------- */

typedef enum {
	VIP_STATE_IDLE = 0,
	VIP_STATE_CONNECTED = 1,
	VIP_STATE_CONNECT_PENDING = 2,
	VIP_STATE_ERROR = 3
} VIP_VI_STATE;

typedef struct _VIP_VI_ATTRIBUTES {
	VIP_RELIABILITY_LEVEL ReliabilityLevel; /* exactly one level */
	VIP_ULONG MaxTransferSize;              /* 0 means that of the NIC */
	VIP_QOS QoS;
	VIP_PROTECTION_HANDLE Ptag;             /* NULL matches every region of the NIC */
	VIP_BOOLEAN EnableRdmaWrite;            /* the remote side may write through this VI */
	VIP_BOOLEAN EnableRdmaRead;
} VIP_VI_ATTRIBUTES;

typedef struct _VIP_MEM_ATTRIBUTES {
	VIP_PROTECTION_HANDLE Ptag; /* NULL matches every VI of the NIC */
	VIP_BOOLEAN EnableRdmaWrite;
	VIP_BOOLEAN EnableRdmaRead;
} VIP_MEM_ATTRIBUTES;

/* ---- Descriptors -------------------------------------------------------- */

struct _VIP_DESCRIPTOR;

/* This pointer has 64 bits on every host. */
typedef union _VIP_PVOID64 {
	VIP_UINT64 AddressBits;
	VIP_PVOID Address;
	struct _VIP_DESCRIPTOR *Descriptor;
} VIP_PVOID64;

/*
 * The library writes the volatile fields when the descriptor is complete. It writes Status last, so
 * a program may poll Status for VIP_STATUS_DONE. Only the Done, Wait and Notify calls take the
 * descriptor from its queue.
 */
typedef struct _VIP_CONTROL_SEGMENT {
	VIP_PVOID64 Next;                 /* belongs to the library while the descriptor is posted */
	VIP_MEM_HANDLE NextHandle;        /* also belongs to the library */
	VIP_UINT16 SegCount;              /* number of segments after this one */
	VIP_UINT16 Control;               /* VIP_CONTROL_... */
	VIP_UINT32 Reserved;              /* 0 */
	volatile VIP_UINT32 ImmediateData;
	volatile VIP_UINT32 Length;       /* sum of the data segments; then the number of bytes transferred */
	volatile VIP_UINT32 Status;       /* VIP_STATUS_...; 0 before posting */
} VIP_CONTROL_SEGMENT;

/* An address segment names remote memory. It is the first segment of an RDMA descriptor. */
typedef struct _VIP_ADDRESS_SEGMENT {
	VIP_PVOID64 Data;
	VIP_MEM_HANDLE Handle;
	VIP_UINT32 Reserved; /* 0 */
} VIP_ADDRESS_SEGMENT;

/* A data segment names local memory. If its length is 0, it needs no valid handle. */
typedef struct _VIP_DATA_SEGMENT {
	VIP_PVOID64 Data;
	VIP_MEM_HANDLE Handle;
	VIP_UINT32 Length;
} VIP_DATA_SEGMENT;

typedef union _VIP_DESCRIPTOR_SEGMENT {
	VIP_ADDRESS_SEGMENT Remote;
	VIP_DATA_SEGMENT Local;
} VIP_DESCRIPTOR_SEGMENT;

/*
 * A descriptor is in registered memory and begins at a multiple of VIP_DESCRIPTOR_ALIGNMENT. If it
 * has more than two segments, the others follow this structure.
 */
VIPL_EXTENSION typedef struct _VIP_DESCRIPTOR {
	VIPL_EXTENSION union {
		VIP_CONTROL_SEGMENT CS;
		VIP_CONTROL_SEGMENT Control;
	};
	VIPL_EXTENSION union {
		VIP_DESCRIPTOR_SEGMENT DS[2];
		VIP_DATA_SEGMENT Data[2];
	};
} VIP_DESCRIPTOR;

#define VIP_DESCRIPTOR_ALIGNMENT 64

/* Values of Control. Immediate and fence have no effect in a receive. */
#define VIP_CONTROL_OP_SENDRECV 0x0000
#define VIP_CONTROL_OP_RDMAWRITE 0x0001
#define VIP_CONTROL_OP_RDMAREAD 0x0002
#define VIP_CONTROL_OP_RESERVED 0x0003
#define VIP_CONTROL_OP_MASK 0x0003
#define VIP_CONTROL_IMMEDIATE 0x0004 /* ImmediateData is valid (Send, RDMA Write) */
#define VIP_CONTROL_QFENCE 0x0008    /* wait for the RDMA Reads that were posted earlier */
#define VIP_CONTROL_RESERVED 0xFFF0

/* Values of Status. */
#define VIP_STATUS_DONE 0x00000001
#define VIP_STATUS_FORMAT_ERROR 0x00000002
#define VIP_STATUS_PROTECTION_ERROR 0x00000004
#define VIP_STATUS_LENGTH_ERROR 0x00000008
#define VIP_STATUS_PARTIAL_ERROR 0x00000010
#define VIP_STATUS_DESC_FLUSHED_ERROR 0x00000020
#define VIP_STATUS_TRANSPORT_ERROR 0x00000040
#define VIP_STATUS_RDMA_PROT_ERROR 0x00000080
#define VIP_STATUS_REMOTE_DESC_ERROR 0x00000100
#define VIP_STATUS_ERROR_MASK 0x000001FE
#define VIP_STATUS_OP_SEND 0x00000000
#define VIP_STATUS_OP_RECEIVE 0x00010000
#define VIP_STATUS_OP_RDMA_WRITE 0x00020000
#define VIP_STATUS_OP_REMOTE_RDMA_WRITE 0x00030000
#define VIP_STATUS_OP_RDMA_READ 0x00040000
#define VIP_STATUS_OP_MASK 0x00070000
#define VIP_STATUS_IMMEDIATE 0x00080000 /* ImmediateData of this receive is valid */
#define VIP_STATUS_RESERVED 0xFFF0FE00

/* ---- Asynchronous errors ------------------------------------------------ */

typedef enum _VIP_RESOURCE_CODE {
	VIP_RESOURCE_NIC = 0,
	VIP_RESOURCE_VI = 1,
	VIP_RESOURCE_CQ = 2,
	VIP_RESOURCE_DESCRIPTOR = 3
} VIP_RESOURCE_CODE;

typedef enum _VIP_ERROR_CODE {
	VIP_ERROR_POST_DESC = 0,
	VIP_ERROR_CONN_LOST = 1,
	VIP_ERROR_RECVQ_EMPTY = 2,
	VIP_ERROR_VI_OVERRUN = 3,
	VIP_ERROR_RDMAW_PROT = 4,
	VIP_ERROR_RDMAW_DATA = 5,
	VIP_ERROR_RDMAW_ABORT = 6,
	VIP_ERROR_RDMAR_PROT = 7,
	VIP_ERROR_COMP_PROT = 8,
	VIP_ERROR_RDMA_TRANSPORT = 9,
	VIP_ERROR_CATASTROPHIC = 10
} VIP_ERROR_CODE;

/* Handles and pointers that do not apply are NULL. */
typedef struct _VIP_ERROR_DESCRIPTOR {
	VIP_NIC_HANDLE NicHandle;
	VIP_VI_HANDLE ViHandle;
	VIP_CQ_HANDLE CQHandle;
	VIP_DESCRIPTOR *DescriptorPtr;
	VIP_ULONG OpCode; /* VIP_CONTROL_OP_... */
	VIP_RESOURCE_CODE ResourceCode;
	VIP_ERROR_CODE ErrorCode;
} VIP_ERROR_DESCRIPTOR;

/* ---- Management --------------------------------------------------------- */

#define VIP_SMI_AUTODISCOVERY 1

/*
 * Before the call, ADAddrArray points to NumAdAddrs pointers, each to room for an address (see
 * VIP_NET_ADDRESS), or is NULL. After the call, NumAdAddrs is the number of known hosts. Their
 * addresses were written as far as there was room.
 */
typedef struct _VIP_AUTODISCOVERY_LIST {
	VIP_ULONG NumberOfHops;
	VIP_NET_ADDRESS **ADAddrArray;
	VIP_ULONG NumAdAddrs;
} VIP_AUTODISCOVERY_LIST;

/* ---- Handlers: of errors, of a work queue, of a completion queue -------- */

typedef void (*VIP_ERROR_HANDLER)(VIP_PVOID Context, VIP_ERROR_DESCRIPTOR *ErrorDesc);
typedef void (*VIP_VI_CALLBACK)(VIP_PVOID Context, VIP_NIC_HANDLE NicHandle, VIP_VI_HANDLE ViHandle, VIP_DESCRIPTOR *Descriptor);
typedef void (*VIP_CQ_CALLBACK)(VIP_PVOID Context, VIP_NIC_HANDLE NicHandle, VIP_VI_HANDLE ViHandle, VIP_BOOLEAN RecvQueue);

/* ---- Calls: NICs -------------------------------------------------------- */

VIP_RETURN VipOpenNic(IN const VIP_CHAR *DeviceName, OUT VIP_NIC_HANDLE *NicHandle);
VIP_RETURN VipCloseNic(IN VIP_NIC_HANDLE NicHandle);
VIP_RETURN VipQueryNic(IN VIP_NIC_HANDLE NicHandle, OUT VIP_NIC_ATTRIBUTES *Attributes);

/* ---- Calls: protection tags and memory ---------------------------------- */

VIP_RETURN VipCreatePtag(IN VIP_NIC_HANDLE NicHandle, OUT VIP_PROTECTION_HANDLE *Ptag);
VIP_RETURN VipDestroyPtag(IN VIP_NIC_HANDLE NicHandle, IN VIP_PROTECTION_HANDLE Ptag);

/* If MemAttributes is NULL, the region has no tag and permits no RDMA by the remote side. */
VIP_RETURN VipRegisterMem(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID VirtualAddress, IN VIP_ULONG Length,
	IN VIP_MEM_ATTRIBUTES *MemAttributes, OUT VIP_MEM_HANDLE *MemoryHandle);
VIP_RETURN VipDeregisterMem(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID VirtualAddress, IN VIP_MEM_HANDLE MemoryHandle);
VIP_RETURN VipSetMemAttributes(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID Address, IN VIP_MEM_HANDLE MemHandle,
	IN VIP_MEM_ATTRIBUTES *MemAttributes);
VIP_RETURN VipQueryMem(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID Address, IN VIP_MEM_HANDLE MemHandle,
	OUT VIP_MEM_ATTRIBUTES *MemAttributes);

/* ---- Calls: VIs --------------------------------------------------------- */

/* If the completion queue is NULL, the work queue is not attached to one. */
VIP_RETURN VipCreateVi(IN VIP_NIC_HANDLE NicHandle, IN VIP_VI_ATTRIBUTES *ViAttribs, IN VIP_CQ_HANDLE SendCQHandle,
	IN VIP_CQ_HANDLE RecvCQHandle, OUT VIP_VI_HANDLE *ViHandle);
VIP_RETURN VipDestroyVi(IN VIP_VI_HANDLE ViHandle);
VIP_RETURN VipSetViAttributes(IN VIP_VI_HANDLE ViHandle, IN VIP_VI_ATTRIBUTES *Attributes);

/* Any of the four outputs may be NULL. */
VIP_RETURN VipQueryVi(IN VIP_VI_HANDLE ViHandle, OUT VIP_VI_STATE *State, OUT VIP_VI_ATTRIBUTES *Attributes,
	OUT VIP_BOOLEAN *ViSendQEmpty, OUT VIP_BOOLEAN *ViRecvQEmpty);

/* ---- Calls: connections ------------------------------------------------- */

VIP_RETURN VipConnectWait(IN VIP_NIC_HANDLE NicHandle, IN VIP_NET_ADDRESS *LocalAddr, IN VIP_ULONG Timeout,
	OUT VIP_NET_ADDRESS *RemoteAddr, OUT VIP_VI_ATTRIBUTES *RemoteViAttribs, OUT VIP_CONN_HANDLE *ConnHandle);
VIP_RETURN VipConnectAccept(IN VIP_CONN_HANDLE ConnHandle, IN VIP_VI_HANDLE ViHandle);
VIP_RETURN VipConnectReject(IN VIP_CONN_HANDLE ConnHandle);

/* RemoteViAttribs may be NULL. */
VIP_RETURN VipConnectRequest(IN VIP_VI_HANDLE ViHandle, IN VIP_NET_ADDRESS *LocalAddr, IN VIP_NET_ADDRESS *RemoteAddr,
	IN VIP_ULONG Timeout, OUT VIP_VI_ATTRIBUTES *RemoteViAttribs);
VIP_RETURN VipDisconnect(IN VIP_VI_HANDLE ViHandle);

VIP_RETURN VipConnectPeerRequest(IN VIP_VI_HANDLE ViHandle, IN VIP_NET_ADDRESS *LocalAddr, IN VIP_NET_ADDRESS *RemoteAddr,
	IN VIP_ULONG Timeout);
VIP_RETURN VipConnectPeerDone(IN VIP_VI_HANDLE ViHandle, OUT VIP_VI_ATTRIBUTES *RemoteViAttribs);
VIP_RETURN VipConnectPeerWait(IN VIP_VI_HANDLE ViHandle, OUT VIP_VI_ATTRIBUTES *RemoteViAttribs);

/* ---- Calls: transfers --------------------------------------------------- */

/* MemoryHandle is the handle of the memory that contains the descriptor. */
VIP_RETURN VipPostSend(IN VIP_VI_HANDLE ViHandle, IN VIP_DESCRIPTOR *DescriptorPtr, IN VIP_MEM_HANDLE MemoryHandle);
VIP_RETURN VipSendDone(IN VIP_VI_HANDLE ViHandle, OUT VIP_DESCRIPTOR **DescriptorPtr);
VIP_RETURN VipSendWait(IN VIP_VI_HANDLE ViHandle, IN VIP_ULONG TimeOut, OUT VIP_DESCRIPTOR **DescriptorPtr);
VIP_RETURN VipSendNotify(IN VIP_VI_HANDLE ViHandle, IN VIP_PVOID Context,
	IN void (*Handler)(VIP_PVOID Context, VIP_NIC_HANDLE NicHandle, VIP_VI_HANDLE ViHandle, VIP_DESCRIPTOR *Descriptor));
VIP_RETURN VipPostRecv(IN VIP_VI_HANDLE ViHandle, IN VIP_DESCRIPTOR *DescriptorPtr, IN VIP_MEM_HANDLE MemoryHandle);
VIP_RETURN VipRecvDone(IN VIP_VI_HANDLE ViHandle, OUT VIP_DESCRIPTOR **DescriptorPtr);
VIP_RETURN VipRecvWait(IN VIP_VI_HANDLE ViHandle, IN VIP_ULONG TimeOut, OUT VIP_DESCRIPTOR **DescriptorPtr);
VIP_RETURN VipRecvNotify(IN VIP_VI_HANDLE ViHandle, IN VIP_PVOID Context,
	IN void (*Handler)(VIP_PVOID Context, VIP_NIC_HANDLE NicHandle, VIP_VI_HANDLE ViHandle, VIP_DESCRIPTOR *Descriptor));

/* ---- Calls: completion queues ------------------------------------------- */

VIP_RETURN VipCreateCQ(IN VIP_NIC_HANDLE NicHandle, IN VIP_ULONG EntryCount, OUT VIP_CQ_HANDLE *CQHandle);
VIP_RETURN VipDestroyCQ(IN VIP_CQ_HANDLE CQHandle);
VIP_RETURN VipResizeCQ(IN VIP_CQ_HANDLE CQHandle, IN VIP_ULONG EntryCount);

/* RecvQueue is VIP_TRUE for the receive queue. The descriptor remains in that queue. */
VIP_RETURN VipCQDone(IN VIP_CQ_HANDLE CQHandle, OUT VIP_VI_HANDLE *ViHandle, OUT VIP_BOOLEAN *RecvQueue);
VIP_RETURN VipCQWait(IN VIP_CQ_HANDLE CQHandle, IN VIP_ULONG Timeout, OUT VIP_VI_HANDLE *ViHandle, OUT VIP_BOOLEAN *RecvQueue);
VIP_RETURN VipCQNotify(IN VIP_CQ_HANDLE CQHandle, IN VIP_PVOID Context,
	IN void (*Handler)(VIP_PVOID Context, VIP_NIC_HANDLE NicHandle, VIP_VI_HANDLE ViHandle, VIP_BOOLEAN RecvQueue));

/* ---- Calls: errors, management, names ----------------------------------- */

/*
 * If Handler is NULL, the default handler is set, which writes one line to the standard error.
 */
VIP_RETURN VipErrorCallback(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID Context,
	IN void (*Handler)(VIP_PVOID Context, VIP_ERROR_DESCRIPTOR *ErrorDesc));
VIP_RETURN VipQuerySystemManagementInfo(IN VIP_NIC_HANDLE NicHandle, IN VIP_ULONG InfoType, OUT VIP_PVOID SysManInfo);

VIP_RETURN VipNSInit(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID NSInitInfo);

/* The call writes NicAddressLen bytes of the host part, and HostAddressLen, and nothing else. */
VIP_RETURN VipNSGetHostByName(IN VIP_NIC_HANDLE NicHandle, IN VIP_CHAR *Name, OUT VIP_NET_ADDRESS *Address,
	IN VIP_ULONG NameIndex);

/*
 * NameLen is the size of Name before the call. After the call it is the length of the host's name
 * with the final 0, also if Name is too small and the call returns VIP_ERROR_RESOURCE.
 */
VIP_RETURN VipNSGetHostByAddr(IN VIP_NIC_HANDLE NicHandle, IN VIP_NET_ADDRESS *Address, OUT VIP_CHAR *Name,
	IN OUT VIP_ULONG *NameLen);
VIP_RETURN VipNSShutdown(IN VIP_NIC_HANDLE NicHandle);

/* ---- Calls: extensions of cLAN ------------------------------------------ */

/* *SendsDeferred is set to VIP_FALSE, because the library itself sends deferred messages. */
VIP_RETURN VipPostDeferredSends(IN VIP_VI_HANDLE ViHandle, IN VIP_BOOLEAN EnableInterrupt, OUT VIP_BOOLEAN *SendsDeferred);

/* These two calls return VIP_ERROR_NOT_SUPPORTED. */
VIP_RETURN VipAddTagCQ(IN VIP_CQ_HANDLE CQHandle, IN OUT VIP_EVENT_HANDLE *EventHandle, IN VIP_ULONG Tag, IN VIP_ULONG Priority);
VIP_RETURN VipRemoveTagCQ(IN VIP_CQ_HANDLE CQHandle, IN VIP_EVENT_HANDLE EventHandle, IN VIP_ULONG Tag);

/* A program may store a pointer for each VI. The result is NULL if the handle is not valid. */
VIP_PVOID VipGetUserData(IN VIP_VI_HANDLE ViHandle);
void VipSetUserData(IN VIP_VI_HANDLE ViHandle, IN VIP_PVOID UserData);

/* ---- Layouts ------------------------------------------------------------ */

#define VIPL_LAYOUT(name, holds) typedef char vipl_layout_##name[(holds) ? 1 : -1]

VIPL_LAYOUT(net_address, sizeof(VIP_NET_ADDRESS) == 6 && offsetof(VIP_NET_ADDRESS, HostAddress) == 4);
VIPL_LAYOUT(control_segment, sizeof(VIP_CONTROL_SEGMENT) == 32 && offsetof(VIP_CONTROL_SEGMENT, SegCount) == 12 &&
	offsetof(VIP_CONTROL_SEGMENT, ImmediateData) == 20 && offsetof(VIP_CONTROL_SEGMENT, Status) == 28);
VIPL_LAYOUT(segments, sizeof(VIP_ADDRESS_SEGMENT) == 16 && sizeof(VIP_DATA_SEGMENT) == 16 && sizeof(VIP_DESCRIPTOR_SEGMENT) == 16);
VIPL_LAYOUT(descriptor, sizeof(VIP_DESCRIPTOR) == 64 && offsetof(VIP_DESCRIPTOR, DS) == 32 && offsetof(VIP_DESCRIPTOR, Data) == 32);
#if defined(__LP64__)
VIPL_LAYOUT(ulong, sizeof(VIP_ULONG) == 8);
VIPL_LAYOUT(nic, sizeof(VIP_NIC_ATTRIBUTES) == 200 && offsetof(VIP_NIC_ATTRIBUTES, LocalNicAddress) == 88 &&
	offsetof(VIP_NIC_ATTRIBUTES, MaxRegisterBytes) == 104 && offsetof(VIP_NIC_ATTRIBUTES, RDMAReadSupport) == 194);
VIPL_LAYOUT(vi, sizeof(VIP_VI_ATTRIBUTES) == 40 && offsetof(VIP_VI_ATTRIBUTES, EnableRdmaRead) == 36);
VIPL_LAYOUT(mem, sizeof(VIP_MEM_ATTRIBUTES) == 16 && offsetof(VIP_MEM_ATTRIBUTES, EnableRdmaRead) == 12);
VIPL_LAYOUT(error, sizeof(VIP_ERROR_DESCRIPTOR) == 48 && offsetof(VIP_ERROR_DESCRIPTOR, ErrorCode) == 44);
VIPL_LAYOUT(autodiscovery, sizeof(VIP_AUTODISCOVERY_LIST) == 24);
#elif defined(__ILP32__) || defined(__i386__)
VIPL_LAYOUT(nic, sizeof(VIP_NIC_ATTRIBUTES) == 136 && offsetof(VIP_NIC_ATTRIBUTES, LocalNicAddress) == 76);
VIPL_LAYOUT(vi, sizeof(VIP_VI_ATTRIBUTES) == 24);
VIPL_LAYOUT(mem, sizeof(VIP_MEM_ATTRIBUTES) == 12);
VIPL_LAYOUT(error, sizeof(VIP_ERROR_DESCRIPTOR) == 28);
VIPL_LAYOUT(autodiscovery, sizeof(VIP_AUTODISCOVERY_LIST) == 12);
#endif
#undef VIPL_LAYOUT

#ifdef __cplusplus
}
#endif

#endif
