//go:build !linux || (!amd64 && !arm64)

package main

import "fmt"

func main() { fmt.Println("SKIPPED: viaduct run needs Linux on amd64 or arm64") }
