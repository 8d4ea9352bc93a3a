"""Child processes of trials and measurements: started or forked, with a deadline, always waited for."""
