//go:build linux

package main

import (
	"time"

	"viaduct/interop/internal/mixed"
)

// plans has the plans by name, except "long", whose duration the scenario determines.
var plans = map[string]mixed.Plan{
	"short": {Seed: 7, For: 30 * time.Millisecond, Rate: 100_000, MaxBytes: 3000, Window: 2},
}

func longPlan(d time.Duration, rate int) mixed.Plan {
	return mixed.Plan{Seed: 11, For: d, Rate: rate, MaxBytes: 30_000, Window: 8}
}
