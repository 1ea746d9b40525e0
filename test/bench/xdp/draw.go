package main

func (r *Report) draw(string) error { return nil }
