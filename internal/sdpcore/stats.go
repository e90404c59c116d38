package sdpcore

import "time"

// Stats count the work of a machine since New. Resume does not reset the counters.
type Stats struct {
	SentBytesBcopy     uint64 // payload of Data
	SentBytesPrefix    uint64 // payload of SrcAvail
	SentBytesTransact  uint64 // payload of SinkAvail
	SentBytesRead      uint64 // fetched by the peer's RDMA Reads, counted when acknowledged
	SentBytesWrite     uint64 // sent by RDMA Write
	RecvBytesBcopy     uint64
	RecvBytesPrefix    uint64
	RecvBytesTransact  uint64
	RecvBytesRead      uint64 // fetched by RDMA Read
	RecvBytesWrite     uint64 // written by the peer's RDMA Writes, counted when acknowledged
	SentMessages       uint64
	RecvMessages       uint64
	SentCreditUpdates  uint64 // empty Data messages
	CreditStalls       uint64 // number of times that payload had to wait for credit
	SentSrcAvails      uint64
	RecvSrcAvails      uint64
	SentSinkAvails     uint64
	RecvSinkAvails     uint64
	StaleSinkAvails    uint64 // SinkAvails received and discarded, because payload had crossed them
	Overrides          uint64 // SrcAvails abandoned because the peer sent a SinkAvail
	SentSendSms        uint64
	RecvSendSms        uint64
	SentSrcCancels     uint64
	SentSinkCancels    uint64
	ModeChangesSent    uint64
	ModeChangesRecv    uint64
	UrgentSent         uint64
	UrgentRecv         uint64
	Resizes            uint64
	Suspensions        uint64
	Violations         uint64
	CompactedBytes     uint64 // copied to free a Private Buffer
	LongestCreditStall time.Duration
}
