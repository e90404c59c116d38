package run

// A Finding is the result of a test of --check.
type Finding struct {
	What string `json:"what"`
	Good bool   `json:"good"`
	// Warn is set if programs can be run, but with limits.
	Warn bool   `json:"warn,omitempty"`
	Says string `json:"says"`
	Do   string `json:"do,omitempty"`
}
