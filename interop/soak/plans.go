package main

import (
	"time"

	"viaduct/interop/internal/mixed"
)

// A behaviour determines what a connection does: the plan of the listener, and whether the client
// kills the connection.
type behaviour struct {
	name   string
	weight int
	plan   mixed.Plan
	killed bool // the client kills the connection at a random moment
}

// behaviours has the behaviours by weight. Few connections move many bytes, so that 200 connections
// do not overload a machine with two processors.
var behaviours = []behaviour{
	{"comes and goes", 30, mixed.Plan{Seed: 1, For: 20 * time.Millisecond, Rate: 200_000, MaxBytes: 4000, Window: 2}, false},
	{"transfers", 25, mixed.Plan{Seed: 2, For: 3 * time.Second, Rate: 30_000, MaxBytes: 16_000, Window: 4}, false},
	{"transfers much", 3, mixed.Plan{Seed: 3, For: 2 * time.Second, Rate: 3_000_000, MaxBytes: 60_000, Window: 8}, false},
	{"idles", 27, mixed.Plan{Seed: 4, For: time.Second, Rate: 10_000, MaxBytes: 2000, Window: 2, Idle: 4 * time.Second}, false},
	{"is killed", 15, mixed.Plan{Seed: 2, For: 3 * time.Second, Rate: 30_000, MaxBytes: 16_000, Window: 4}, true},
}

// addresses are the addresses of the server, by transport and behaviour.
type addresses map[string][]string
