package vitcp

import "viaduct/internal/wire/vitcpwire"

// These are short names for the reasons of a Connect Reject. [V-46]
const (
	rejectAttributes  = vitcpwire.RejectAttributes
	rejectApplication = vitcpwire.RejectApplication
	rejectResources   = vitcpwire.RejectResources
	rejectVersion     = vitcpwire.RejectVersion
	rejectCrossed     = vitcpwire.RejectCrossed
)
