//go:build !plaintcp

package samehost

// auto is the value of Auto.
const auto = 0
