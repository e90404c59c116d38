package vitcp

import "viaduct/internal/wire/vitcpwire"

// The reasons of a Connect Reject under short names. [V-46]
const (
	rejectAttributes  = vitcpwire.RejectAttributes
	rejectApplication = vitcpwire.RejectApplication
	rejectResources   = vitcpwire.RejectResources
	rejectVersion     = vitcpwire.RejectVersion
	rejectCrossed     = vitcpwire.RejectCrossed
)
