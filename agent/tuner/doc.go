// Package tuner chooses how the kernel handles each TAP: threads and timeouts of NAPI by what the guest sends, the ring's length by what is
// dropped, masks of CPUs at each attach of a VMM; and, where asked for, channels, rings, coalescing and interrupts of uplinks. What it
// decides is a matter of tables (package tap, and [Profile]) and of pure functions over samples; what it changes stands in the journal
// first, so that it can be given back. It sets no link up or down.
package tuner
