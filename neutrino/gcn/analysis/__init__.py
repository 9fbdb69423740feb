"""What is known of a function of AMD's machine code: blocks, live registers, free ones, where code may go."""
