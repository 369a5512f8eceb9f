"""The doctor: is a model's head alive, exact and worth its time on this machine?"""
